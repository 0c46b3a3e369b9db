"""The elastic sampler, and the audit that each sample was used once. Nothing is imported here: the audit needs no
torch.
"""
