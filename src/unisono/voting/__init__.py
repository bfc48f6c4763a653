"""What a member's vote is: over pieces of the union (GaC to the letter), or over bytes."""
