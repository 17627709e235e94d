"""Jobs as people and programs see them: the command csctl, and the server that the published csctl client talks to."""
