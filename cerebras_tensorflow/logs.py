"""The log of a run: the lines that users of the original know, under the name that they carry there.

`tf.compat.v1.logging.set_verbosity(INFO)` in a script shows them as `INFO:tensorflow:...`. Details for developers go to
`logging.getLogger(__name__)` of their module.
"""

import logging

run_log = logging.getLogger("tensorflow")
