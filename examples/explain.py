"""Why was it found? Words and seconds add up to the score."""

from pathlib import Path

import prota

hit = prota.Library("lib").search("a cup of coffee", k=1)[0]
for word in hit.explain().words:
    print(word.text, word.contribution)
Path("coffee.jpg").write_bytes(hit.thumbnail)
