"""Where streamed weights live between their uses: in a file, mapped or read and written in place, or on servers.

| module | what it does |
|---|---|
| `weight_store_interface.py` | what a store offers |
| `weight_store_mapped.py` | in a mapped file that fits into memory |
| `weight_store_sums.py` | checksums of a weight there, by pieces whose bounds follow its updates |
| `weight_store_file.py` | in a file: checked reads, writes behind |
| `weight_store_blocks.py` | blocks of a file, their checksums, blocks that still are in a checkpoint |
| `weight_store_folder.py` | the folder: its lock, what a killed run left, messages about the disk |
| `weight_store_buffers.py` | page-aligned memory that is used again |
"""

from cerebras_tensorflow.runtime.weight_store_file import FileStore
from cerebras_tensorflow.runtime.weight_store_interface import Move, WeightStore
from cerebras_tensorflow.runtime.weight_store_mapped import MappedStore

__all__ = ["FileStore", "MappedStore", "Move", "WeightStore"]
