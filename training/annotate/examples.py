"""Examples that an annotator is shown: prompts, and answers in their written form. All our own words."""

from __future__ import annotations

__all__ = ["EXAMPLES"]

EXAMPLES: tuple[tuple[str, str], ...] = (
    (
        "Should I learn the piano or the guitar?",
        'Both are good first instruments. <promise topic="piano" tokens="40"/><async>The piano lays '
        "out every note in front of you, which makes chords and theory easy to grasp. It is heavy and "
        "not cheap, though a keyboard with weighted keys will do for years.</async> <promise "
        'topic="guitar" tokens="40"/><async>The guitar is cheap and goes wherever you go. Your '
        "fingertips will hurt for some weeks, and changing chords takes patience, but three of them "
        "are enough for a great many songs.</async><sync/> So if you want to understand music, take "
        "the piano; if you want to play with friends by the summer, take the guitar.",
    ),
    (
        "Give me three tips for sleeping better.",
        "Here are three tips:\n\n"
        '1. **Light**: <promise topic="light" tokens="30"/><async>Dim the lamps an hour before bed and '
        "leave the phone in another room. In the morning, open the curtains at once.</async>\n"
        '2. **Regular hours**: <promise topic="regular hours" tokens="40"/><async>Go to bed and get up '
        "at the same time on every day of the week. The body learns the rhythm within a fortnight, and "
        "falling asleep gets easier.</async>\n"
        '3. **Caffeine**: <promise topic="caffeine" tokens="30"/><async>Coffee stays in the blood for '
        "many hours, so have the last cup at noon. Black and green tea count too.</async>",
    ),
    (
        "A train leaves at 9:40 and takes 2 hours and 35 minutes. When does it arrive?",
        "Two hours after 9:40 it is 11:40. Another 35 minutes later it is 12:15, so the train arrives "
        "at 12:15.",
    ),
    (
        "Write a short report on the school garden: the beds, the pond, and what to do next.",
        "# The school garden\n\n"
        "## The beds\n\n"
        '<promise topic="the beds" tokens="30"/><async>Eleven of the twelve beds are planted. Beans '
        "and squash did well in spite of the dry June, while slugs took most of the lettuce.</async>"
        "\n\n"
        "## The pond\n\n"
        '<promise topic="the pond" tokens="30"/><async>The liner was mended in April and has held '
        "water since. There are newts again, and the children count them on Fridays.</async>\n\n"
        "## What to do next<sync/>\n\n"
        "Since the slugs did more harm than the drought, the fence around the beds comes first, and "
        "the pond can wait until the spring.",
    ),
    (
        "Tell me a very short story about a lighthouse.",
        "The lamp had burned for ninety years when the last keeper came down the stairs. He had left "
        "it lit. That night no ship passed, and yet, far out, somebody answered with three short "
        "flashes.",
    ),
    (
        "Compare renting and buying a home, first the costs and then the freedom.",
        "**Costs**\n\n"
        '- Renting: <promise topic="renting costs" tokens="30"/><async>You pay the rent and little '
        "else, and repairs are the landlord's. The rent can rise, and nothing of it comes back.</async>"
        "\n"
        '- Buying: <promise topic="buying costs" tokens="30"/><async>You need savings for the deposit, '
        "and every repair is yours. In return, part of each payment becomes your own "
        "wealth.</async><sync/>\n\n"
        "Over ten years buying tends to win, over two years renting does.\n\n"
        "**Freedom**\n\n"
        '- Renting: <promise topic="renting freedom" tokens="30"/><async>With three months of notice '
        "you can move to another town. Painting the walls may need a letter to the landlord.</async>\n"
        '- Buying: <promise topic="buying freedom" tokens="30"/><async>You can tear down a wall if you '
        "feel like it. Selling takes months, so a new job far away is a harder choice.</async>",
    ),
    (
        "How do I get red wine out of a tablecloth?",
        "Act while it is wet. First dab up what you can with a clean cloth, without rubbing. Then "
        "cover the stain with salt, wait ten minutes until it has turned pink, and shake it off. What "
        "is left now goes out in the wash.",
    ),
)
"""Independent parts with a join, a list, a calculation, a report, a story, two rounds, and steps in order."""
