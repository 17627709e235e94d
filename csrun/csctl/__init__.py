"""The command csctl, and the server for the published csctl client: both show, label and cancel jobs."""
