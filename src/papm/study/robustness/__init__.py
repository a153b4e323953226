"""How much do misplaced dots cost, and which method tolerates them best: a study made from a folder of images."""
