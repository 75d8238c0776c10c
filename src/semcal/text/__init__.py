"""Normal forms of answers, and the numbers, values and names in them."""
