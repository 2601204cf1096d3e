//! The ids of all queries so far, each under its number.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::data::column::TextColumn;

/// Query ids in the order of their first documents, found again by their text.
///
/// No memory of its own for each id: with few documents a query, allocating would cost as much as parsing.
#[derive(Default)]
pub struct QueryIds {
    text: String,
    ends: Vec<usize>,
    numbers: HashTable<usize>,
    hasher: DefaultHashBuilder,
}

impl QueryIds {
    /// Number of ids.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// The number of `id`, counted from 0, which is a new one where it was not yet seen.
    pub fn number(&mut self, id: &str) -> usize {
        let QueryIds { text, ends, numbers, hasher } = self;
        let hash = hasher.hash_one(id);
        let known = |&number: &usize| get(text, ends, number) == id;
        if let Some(&number) = numbers.find(hash, known) {
            return number;
        }
        let number = ends.len();
        text.push_str(id);
        ends.push(text.len());
        numbers.insert_unique(hash, number, |&number| hasher.hash_one(get(text, ends, number)));
        number
    }

    /// All ids in order.
    pub fn into_column(self) -> TextColumn {
        (0..self.len()).map(|number| get(&self.text, &self.ends, number)).collect()
    }
}

fn get<'a>(text: &'a str, ends: &[usize], number: usize) -> &'a str {
    let start = number.checked_sub(1).map_or(0, |before| ends[before]);
    &text[start..ends[number]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_keep_their_numbers() {
        let mut ids = QueryIds::default();
        let texts: Vec<String> = (0..1000).map(|number| format!("{}", number * 7 % 500)).collect();
        for (at, text) in texts.iter().enumerate() {
            assert_eq!(ids.number(text), at % 500, "{text}");
        }
        assert_eq!(ids.len(), 500);
        assert_eq!((ids.number("é"), ids.number(""), ids.number("é")), (500, 501, 500));
        let column = ids.into_column();
        assert_eq!((column.get(1), column.get(499), column.get(500), column.get(501)), ("7", "493", "é", ""));
    }
}
