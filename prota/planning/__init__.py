"""What a library of a given size will need: storage, memory, machines, time; from figures measured here."""
