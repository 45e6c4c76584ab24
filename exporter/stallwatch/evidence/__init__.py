"""What is kept of an incident, when, where, and what does it tell?"""
