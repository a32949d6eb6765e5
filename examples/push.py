"""Share a model on a hub."""

import prota

model = prota.load("runs/mine")
print(model.push_to_hub("me/mine"))
