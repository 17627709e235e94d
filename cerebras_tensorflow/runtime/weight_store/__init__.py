"""Where streamed weights are between their uses: in a mapped file, in a file that is read and written, or on servers.

Import nothing here: a weight server and the launcher load modules of this package without TensorFlow.

| module | what it does |
|---|---|
| `interface.py` | what a store offers |
| `memory.py` | the store in this process's memory, for the share of one of several CSX |
| `mapped.py` | the store in a mapped file that fits into memory |
| `checksums.py` | checksums for the mapped store, by pieces that follow the updates of a weight |
| `file.py` | the store in a file: checked reads, writes in the background |
| `blocks.py` | the blocks of a file, their checksums, and blocks that are still in a checkpoint |
| `packing.py` | sparse pieces without their zeros |
| `traffic.py` | counts the bytes moved |
| `folder.py` | the folder of a store: its files, leftovers of a killed run, messages about the disk |
| `owner.py` | the lock of the folder; refuses files that another program or user made |
| `buffers.py` | page-aligned memory that is reused |
| `write_queue.py` | background writes: back-pressure, order, failure |
| `written_rows.py` | which rows of a weight have a value |
| `failures.py` | the first failure of a store, and errors that all stores share |
| `snapshot.py` | the weights at one moment, kept while training goes on |
| `remote.py` | the store on weight servers: the run's side |
| `server.py` | the weight server process |
| `calls.py` | calls from a compiled graph into its store |
"""
