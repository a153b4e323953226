"""Model files for papm, NAME.safetensors with their cards NAME.md; `papm models list` names those that are here."""
