"""The HTML report of a compiled step or a run: one file that needs no network. Charts are plotly's."""
