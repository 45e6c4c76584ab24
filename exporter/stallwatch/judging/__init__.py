"""The rules of a judgement, each file a stretch of the order in which they decide."""
