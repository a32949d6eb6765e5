"""Fine-tune on captions of your own, and load the result."""

import prota

trainer = prota.Trainer(
    "prota-small", train="clips/samples.csv", videos="clips", out="runs/mine", epochs=1, batch_size=12
)
print(trainer.train())
model = prota.load("runs/mine")
model.save_pretrained("models/mine", weights="int8")
