"""From a video file to pictures: decoding, choice of frames, resizing, and a cache that training reads."""
