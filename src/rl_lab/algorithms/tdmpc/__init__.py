"""TD-MPC and TD-MPC2: a latent model without a decoder, and plans that end in a learned value."""
