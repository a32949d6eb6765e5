"""Metrics of both directions with 95 % intervals."""

import prota

result = prota.evaluate("prota-small", data="samples.toml")
print(result.text_to_video["r1"], result.intervals["text_to_video"]["r1"])
result.write("results/samples.json")
