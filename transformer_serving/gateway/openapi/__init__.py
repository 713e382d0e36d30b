"""The gateway's OpenAPI document, made of what the endpoints say of themselves."""
