//! Properties of characters, as Python has them and Rust does not.

/// The digits zero of all scripts. The nine characters after each are the other digits.
const ZEROS: [u32; 66] = [
    0x30, 0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66,
    0xde6, 0xe50, 0xed0, 0xf20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90,
    0x1b50, 0x1bb0, 0x1c40, 0x1c50, 0xa620, 0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0, 0xff10,
    0x104a0, 0x10d30, 0x11066, 0x110f0, 0x11136, 0x111d0, 0x112f0, 0x11450, 0x114d0, 0x11650,
    0x116c0, 0x11730, 0x118e0, 0x11950, 0x11c50, 0x11d50, 0x11da0, 0x16a60, 0x16ac0, 0x16b50,
    0x1d7ce, 0x1d7d8, 0x1d7e2, 0x1d7ec, 0x1d7f6, 0x1e140, 0x1e2f0, 0x1e950, 0x1fbf0,
];

/// Digits that are no decimal digits, such as `²`.
const OTHER_DIGITS: [(u32, u32); 20] = [
    (0xb2, 0xb3),
    (0xb9, 0xb9),
    (0x1369, 0x1371),
    (0x19da, 0x19da),
    (0x2070, 0x2070),
    (0x2074, 0x2079),
    (0x2080, 0x2089),
    (0x2460, 0x2468),
    (0x2474, 0x247c),
    (0x2488, 0x2490),
    (0x24ea, 0x24ea),
    (0x24f5, 0x24fd),
    (0x24ff, 0x24ff),
    (0x2776, 0x277e),
    (0x2780, 0x2788),
    (0x278a, 0x2792),
    (0x10a40, 0x10a43),
    (0x10e60, 0x10e68),
    (0x11052, 0x1105a),
    (0x1f100, 0x1f10a),
];

/// Ideographs that are numbers.
const NUMBERS: &str = "㐅㒃㠪㭍一七万三九二五亖亿什仟仨伍佰億兆兩八六十千卄卅卌叁参參叄四壱壹幺廾廿弌弍弎弐\
    拾捌柒漆玖百肆萬貮貳贰阡陆陌陸零\u{f96b}\u{f973}\u{f978}\u{f9b2}\u{f9d1}\u{f9d3}\u{f9fd}\
    𠀁𠁤𠃢𠄡𠤪𠦃𠦌𠦜𠫪𠫽𠬙𢎐𢦘𣬛𦉭";

/// Returns the value of a decimal digit.
pub(super) fn decimal(character: char) -> Option<u32> {
    let code = u32::from(character);
    let zero = ZEROS.partition_point(|&zero| zero <= code).checked_sub(1)?;
    Some(code - ZEROS[zero]).filter(|&digit| digit < 10)
}

pub(super) fn is_digit(character: char) -> bool {
    let code = u32::from(character);
    let other = |&(first, last): &(u32, u32)| (first..=last).contains(&code);
    decimal(character).is_some() || OTHER_DIGITS.iter().any(other)
}

pub(super) fn is_numeric(character: char) -> bool {
    character.is_numeric() || NUMBERS.contains(character)
}

/// Returns whether a character is whitespace, as `str.strip` and `str.split` see it.
pub(in super::super) fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\x1c'..='\x1f').contains(&character)
}

/// Returns whether a character ends a line.
pub(in super::super) fn ends_line(character: char) -> bool {
    matches!(
        character,
        '\n' | '\r'
            | '\x0b'
            | '\x0c'
            | '\x1c'
            | '\x1d'
            | '\x1e'
            | '\u{85}'
            | '\u{2028}'
            | '\u{2029}'
    )
}

/// Returns whether `repr` shows a character as it is.
pub(super) fn printable(character: char) -> bool {
    if character.is_ascii() {
        return (' '..='~').contains(&character);
    }
    // Only the first character of a string is escaped for being a combining mark.
    let text = String::from_iter(['a', character]);
    text.escape_debug().nth(1) != Some('\\')
}

/// Returns a character in title case.
pub(super) fn title(character: char) -> String {
    match character {
        'Ǆ' | 'ǅ' | 'ǆ' => "ǅ".into(),
        'Ǉ' | 'ǈ' | 'ǉ' => "ǈ".into(),
        'Ǌ' | 'ǋ' | 'ǌ' => "ǋ".into(),
        'Ǳ' | 'ǲ' | 'ǳ' => "ǲ".into(),
        // Georgian has capitals, but no title case.
        'ა'..='ჿ' => character.into(),
        _ => {
            let mut upper = character.to_uppercase();
            let first = upper.next().into_iter();
            first.chain(upper.flat_map(char::to_lowercase)).collect()
        }
    }
}

/// Returns whether a character is a letter. Marks and numbers with letters' properties are none.
pub(super) fn is_letter(character: char) -> bool {
    let mark = character.escape_debug().count() > 1;
    character.is_alphabetic() && !character.is_numeric() && !mark
}

pub(super) fn has_case(character: char) -> bool {
    character.is_uppercase() || character.is_lowercase() || is_title(character)
}

pub(super) fn is_title(character: char) -> bool {
    matches!(character, 'ǅ' | 'ǈ' | 'ǋ' | 'ǲ')
}
