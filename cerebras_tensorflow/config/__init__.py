"""Settings, read and checked once at the edge; the core never sees a dict."""
