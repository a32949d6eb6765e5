"""The settings of a model, of data and of training: typed, validated, saved with what they made."""
