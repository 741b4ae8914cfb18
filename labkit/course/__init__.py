"""The labs: pictures, panels, exercises and claims. What belongs to one lab is in that lab's folder."""
