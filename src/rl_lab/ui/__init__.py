"""The web page: a small server that shows runs, and an inspector of recorded episodes."""
