"""The paper's mathematics, readable: token distributions → similarities → aggregation → score."""
