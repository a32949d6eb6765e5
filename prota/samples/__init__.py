"""Sample clips that anyone may make and pass on: photographs of well-kept packages, set in motion."""
