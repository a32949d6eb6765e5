"""Encode texts and videos, and compare them."""

import prota

model = prota.load("prota-small")
texts = model.encode_text(["a cat", "a cup of coffee"])
videos = model.encode_video(["clips/cat.mp4", "clips/coffee.mp4"])
print(model.similarity(texts, videos))
