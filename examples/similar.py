"""Find moments that look like a part of a clip."""

import prota

lib = prota.Library("lib")
for hit in lib.search(like="clips/sintel.mp4", start=0, end=5).hits:
    print(hit.path, hit.start, hit.end, hit.score)
