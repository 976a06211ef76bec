//! Which characters are pictures: they are left out, since no voice was taught their names.

/// Whether a character is left out after `before`.
pub(super) fn is_left_out(letter: char, before: Option<char>) -> bool {
    match letter {
        // Selectors and keycaps after a character that stays, and the letters of flags.
        '\u{fe0e}' | '\u{fe0f}' | '\u{20e3}' | '\u{e0020}'..='\u{e007f}' => true,
        // Joins pictures; between letters it belongs to scripts that need it.
        '\u{200d}' => before.is_some_and(|before| is_picture(before) || before == '\u{fe0f}'),
        _ => is_picture(letter),
    }
}

fn is_picture(letter: char) -> bool {
    match letter {
        // Sharp, flat and natural are names of notes, and circled numbers are numbers.
        '\u{266d}'..='\u{266f}' | '\u{2776}'..='\u{2793}' => false,
        '\u{2600}'..='\u{27bf}' => true,
        '\u{231a}'
        | '\u{231b}'
        | '\u{2328}'
        | '\u{23cf}'
        | '\u{23e9}'..='\u{23f3}'
        | '\u{23f8}'..='\u{23fa}' => true,
        '\u{25aa}' | '\u{25ab}' | '\u{25b6}' | '\u{25c0}' | '\u{25fb}'..='\u{25fe}' => true,
        '\u{2b05}'..='\u{2b07}' | '\u{2b1b}' | '\u{2b1c}' | '\u{2b50}' | '\u{2b55}' => true,
        '\u{3030}' | '\u{303d}' => true,
        // Letters in squares and circles are text, but for the few that are signs.
        '\u{1f000}'..='\u{1f0ff}' | '\u{1f170}'..='\u{1f1ff}' | '\u{1f201}'..='\u{1f7ff}' => true,
        '\u{1f900}'..='\u{1faff}' => true,
        _ => false,
    }
}
