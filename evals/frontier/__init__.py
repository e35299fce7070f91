"""Models as points of speed and quality: `measuring` measures one, `report` compares those of a run."""
