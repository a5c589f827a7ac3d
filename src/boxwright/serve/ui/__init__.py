"""`boxwright ui`: labelled sets, runs and reports of this machine's folders in a browser. It changes nothing."""
