"""The composition root: from settings to store, kernel, workers. `Engine` is the face that users see."""
