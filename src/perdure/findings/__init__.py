"""Findings: their severities, texts and steps; `runtime.diagnosis` makes most of them."""
