"""Where streamed weights live between their uses: in a file, mapped or read and written in place, or on servers.

Import nothing here: a weight server and the launcher load these modules without TensorFlow.

| module | what it does |
|---|---|
| `interface.py` | what a store offers |
| `mapped.py` | in a mapped file that fits into memory |
| `checksums.py` | checksums of a weight there, by pieces whose bounds follow its updates |
| `file.py` | in a file: checked reads, writes behind |
| `blocks.py` | blocks of a file, their checksums, blocks that still are in a checkpoint |
| `folder.py` | the folder: its lock, what a killed run left, messages about the disk |
| `owner.py` | the folder's lock, and what is refused there because another program or user made it |
| `buffers.py` | page-aligned memory that is used again |
| `write_queue.py` | writes behind: how many at a time, their order, what a failure does |
| `written_rows.py` | which rows of a weight have a value |
| `failures.py` | a store's first failure, and errors that all stores share |
| `snapshot.py` | the values of one step, kept while training goes on |
| `remote.py` | weights held by weight servers, seen from the run |
| `server.py` | the weight server's process |
| `calls.py` | the calls of a compiled graph into its store |
"""
