"""From a video file to pictures: which files, which frames, resized how."""
