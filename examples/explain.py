"""Why was it found? The heat of a word: how well each frame fits it."""

from pathlib import Path

import prota

hit = prota.Library("lib").search("a cup of coffee", k=1)[0]
why = hit.explain()
print(why.sentence)
for word in why.words:
    print(word.text, word.heat)
Path("coffee.jpg").write_bytes(hit.thumbnail)
