"""Input pipelines that run in processes of their own.

| module | what it does |
|---|---|
| `chief.py` | the chief's side: may workers compute a dataset; a batch from each of them in turn |
| `parts.py` | a dataset cut into the parts of W workers |
| `order.py` | maps moved behind the steps that only choose elements, so that a worker skips before it computes |
| `remote.py` | the batches of one worker, read ahead; a worker that ends is replaced where it stopped |
| `protocol.py` | the request and the batches as bytes |
| `process.py` | the worker |
| `rate.py` | how fast one process computes the batches, for `cs_input_analyzer` |
"""
