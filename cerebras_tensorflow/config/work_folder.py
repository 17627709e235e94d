"""The folder on this machine for what a run with a model_dir in object storage keeps beside its checkpoints."""

from __future__ import annotations

import os
import re
from urllib.parse import urlsplit

from cerebras_tensorflow.config import env
from cerebras_tensorflow.locations import AnyLocation, local_path, object_location


def work_folder(folder: AnyLocation) -> str:
    """Return a folder itself; for a URL of object storage, its counterpart in the user's cache folder.

    Compiled programs, the weight store and event files are there. Folders below a URL have their counterparts below
    that of the URL. Servers with other addresses have other folders.

    Raises:
        SettingsError: If it is a URL that we cannot read.
    """
    location = object_location(folder)
    if location is None:
        return local_path(folder)
    address = urlsplit(env.object_storage(location.scheme).get("endpoint", "")).netloc
    # A netloc may begin with a name and a password.
    server = re.sub(r"[^A-Za-z0-9.-]", "_", address.rpartition("@")[2]) or "default"
    return os.path.join(env.cache_folder(), "model_dirs", location.scheme, server, location.container, location.key)
