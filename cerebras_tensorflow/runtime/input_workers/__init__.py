"""Input pipelines that run in other processes.

| module | what it does |
|---|---|
| `chief.py` | the chief's side: whether workers can compute a dataset; takes a batch from each worker in turn |
| `parts.py` | cuts a dataset into the parts of W workers |
| `order.py` | moves maps behind the steps that only choose elements, so that a worker skips before it computes |
| `remote.py` | the batches of one worker, read ahead; a new worker continues where a failed one stopped |
| `protocol.py` | the request and the batches as bytes |
| `shared_memory.py` | shares large batches in memory if the chief is on the same machine |
| `process.py` | the worker process |
| `speed.py` | decides whether the chief computes the rest itself, because handing over takes longer |
| `rate.py` | measures how fast one process computes batches, for `cs_input_analyzer` |
"""
