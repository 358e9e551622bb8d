"""One request: loads a released bundle and answers."""
