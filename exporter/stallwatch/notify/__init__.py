"""Who is told of an incident on a node that has no Alertmanager?"""
