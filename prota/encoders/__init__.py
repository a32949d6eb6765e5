"""From words and frames to tokens of one joint width."""
