"""The part that the backends for servers share: requests that end with their reader, and the tokenizer."""
