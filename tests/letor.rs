//! LETOR text: the awkward kinds that are found in the wild, errors at their line and token, and properties.

use std::io::Write;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use setrank::Error;
use setrank::data::letor::{self, IndexBase, Labels, LetorOptions, MAX_INDEX};
use setrank::data::{Absent, Dataset, store};

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

fn options() -> LetorOptions {
    LetorOptions::default()
}

fn read_with(text: impl AsRef<[u8]>, options: &LetorOptions) -> setrank::Result<Dataset> {
    let folder = Folder::new();
    letor::read(&[folder.file("data.txt", text)], options)
}

fn read(text: impl AsRef<[u8]>) -> Dataset {
    read_with(text, &options()).unwrap()
}

/// Line, token and reason of the error that reading `text` gives.
fn error_with(text: impl AsRef<[u8]>, options: &LetorOptions) -> (u64, String, String) {
    match read_with(text, options) {
        Err(Error::Parse { file, line, token, reason }) => {
            assert!(file.ends_with("data.txt"), "{file}");
            (line, token, reason)
        }
        other => panic!("no parse error: {other:?}"),
    }
}

fn error(text: impl AsRef<[u8]>) -> (u64, String, String) {
    error_with(text, &options())
}

fn ids(data: &Dataset) -> Vec<&str> {
    data.queries().map(|query| query.id()).collect()
}

fn sizes(data: &Dataset) -> Vec<usize> {
    data.queries().map(|query| query.len()).collect()
}

/// Equality of everything, missing values included.
fn assert_same(a: &Dataset, b: &Dataset) {
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert_eq!(a.columns(), b.columns());
    assert_eq!(sizes(a), sizes(b));
    assert_eq!(ids(a), ids(b));
    assert_eq!(bits(a.features()), bits(b.features()));
    assert_eq!(a.labels(), b.labels());
    assert_eq!(a.positions(), b.positions());
    for (x, y) in a.queries().zip(b.queries()) {
        for document in 0..x.len() {
            assert_eq!(x.document_id(document), y.document_id(document));
        }
    }
}

/// Rows with missing values as `None`.
fn rows(data: &Dataset) -> Vec<Vec<Option<f32>>> {
    let cell = |&value: &f32| (!value.is_nan()).then_some(value);
    data.features().chunks(data.num_features()).map(|row| row.iter().map(cell).collect()).collect()
}

#[test]
fn sentinels_and_words_are_missing() {
    let data = read(
        "1 qid:1 1:1.79769313486e+308 2:-1.7976931348623157e308 3:1e300\n\
                     0 qid:1 1:nan 2:NULL 3:-Inf\n2 qid:1 1:null 2:+infinity 3:7\n",
    );
    assert_eq!(rows(&data), [[None; 3], [None; 3], [None, None, Some(7.0)]]);
    assert_eq!(data.columns().absent_cells, 0);
}

#[test]
fn values_between_the_ranges_are_errors() {
    let (line, token, reason) = error("1 qid:1 1:3\n1 qid:1 1:4 2:1e39\n");
    assert_eq!((line, &*token), (2, "2:1e39"));
    assert!(reason.contains("32-bit"), "{reason}");
    assert_eq!(error("1 qid:1 1:9.99e299").1, "1:9.99e299");
}

#[test]
fn index_zero_makes_the_file_zero_based() {
    let data = read("0 qid:0 0:3 2:5 #docid = A-1 inc = 1\n2 qid:0 1:4\n1 qid:9 0:8 # docid=B\n");
    let columns = data.columns();
    assert_eq!((columns.first_index, columns.count), (0, 3));
    assert_eq!((columns.least, columns.largest, columns.absent_cells), (Some(0), Some(2), 5));
    assert_eq!(rows(&data)[1], [None, Some(4.0), None]);
    assert_eq!(ids(&data), ["0", "9"]);
    assert_eq!([data.query(0).document_id(0), data.query(0).document_id(1)], ["A-1", ""]);
    assert_eq!(data.query(1).document_id(0), "B");
}

#[test]
fn the_index_base_can_be_given() {
    let zero =
        read_with("1 qid:1 1:5\n", &LetorOptions { index_base: IndexBase::Zero, ..options() }).unwrap();
    assert_eq!(rows(&zero), [[None, Some(5.0)]]);
    let one = LetorOptions { index_base: IndexBase::One, ..options() };
    let (line, token, _) = error_with("1 qid:1 1:5\n\n0 qid:1 0:5\n", &one);
    assert_eq!((line, &*token), (3, "0:5"));
}

#[test]
fn the_declared_width_holds() {
    let wide = LetorOptions { features: Some(5), ..options() };
    let data = read_with("1 qid:1 2:5\n", &wide).unwrap();
    assert_eq!(rows(&data), [[None, Some(5.0), None, None, None]]);
    let (line, token, reason) = error_with("1 qid:1 5:1\n1 qid:1 6:1\n", &wide);
    assert_eq!((line, &*token), (2, "6:1"));
    assert!(reason.contains("index 6") && reason.contains('5'), "{reason}");
    // Five features counted from 0 end at 4, wherever index 0 turns up.
    for text in ["1 qid:1 5:1\n1 qid:1 0:1\n", "1 qid:1 0:1 5:1\n"] {
        let (line, token, reason) = error_with(text, &wide);
        assert_eq!((line, &*token), (1, "5:1"));
        assert!(reason.contains("counted from 0"), "{reason}");
    }
    for features in [0, MAX_INDEX + 2] {
        let wrong = LetorOptions { features: Some(features), ..options() };
        assert!(matches!(read_with("1 qid:1 1:1\n", &wrong), Err(Error::Config(_))));
    }
}

#[test]
fn absurd_indices_are_errors() {
    assert_eq!(read(format!("1 qid:1 {MAX_INDEX}:1")).num_features(), MAX_INDEX as usize);
    for index in ["1000001", "4294967297", "99999999999999999999999"] {
        let (_, token, reason) = error(format!("1 qid:1 {index}:1"));
        assert_eq!(token, format!("{index}:1"));
        assert!(reason.contains("1000000"), "{reason}");
    }
}

#[test]
fn absent_features_are_missing_or_zero() {
    let text = "0 qid:1 10:0.5 12:2E-5\n1 qid:1 11:NULL\n";
    let data = read(text);
    assert_eq!(data.num_features(), 12);
    assert_eq!(rows(&data)[0][9..], [Some(0.5), None, Some(2e-5)]);
    let zero = read_with(text, &LetorOptions { absent: Absent::Zero, ..options() }).unwrap();
    assert_eq!(rows(&zero)[0][8..], [Some(0.0), Some(0.5), Some(0.0), Some(2e-5)]);
    assert_eq!(rows(&zero)[1][9..], [Some(0.0), None, Some(0.0)]);
    assert_eq!(zero.columns().absent_cells, 21);
}

#[test]
fn labels_are_kept_as_they_are() {
    let data = read("0 qid:1 1:1\n0.37 qid:1 1:1\n+3 qid:1 1:1\n-1 qid:1 1:1\n2.0 qid:1 1:1\n");
    assert_eq!(data.labels().unwrap(), [0.0, 0.37, 3.0, -1.0, 2.0]);
    let shifted = LetorOptions { label_offset: -1.0, ..options() };
    let data = read_with("1 qid:1 1:1\n3 qid:1 1:1\n0 qid:1 1:1\n", &shifted).unwrap();
    assert_eq!(data.labels().unwrap(), [0.0, 2.0, -1.0]);
    for (text, token) in
        [("nan qid:1 1:1", "nan"), ("NULL qid:1 1:1", "NULL"), ("x qid:1 1:1", "x"), ("1e39 qid:1", "1e39")]
    {
        assert_eq!(error(text).1, token);
    }
}

#[test]
fn labels_may_be_absent_where_they_are_optional() {
    let optional = LetorOptions { labels: Labels::Optional, ..options() };
    let data = read_with("qid:1 1:1\nqid:2 1:2\n", &optional).unwrap();
    assert!(data.labels().is_none() && !data.has_labels());
    assert_eq!(read_with("1 qid:1 1:1\n", &optional).unwrap().labels().unwrap(), [1.0]);
    assert_eq!(error_with("qid:1 1:1\n3 qid:1 1:1\n", &optional).0, 2);
    assert_eq!(error_with("3 qid:1 1:1\n# none\nqid:1 1:1\n", &optional).0, 3);
    assert_eq!(error_with("1:1 2:1\n", &optional).0, 1);
    assert!(error("qid:1 1:1\n").2.contains("label"));
}

#[test]
fn set_sizes_from_companion_files() {
    let folder = Folder::new();
    let data = folder.file("data.txt", "1 1:1\n0 1:2\n2 1:3\n");
    let more = folder.file("more.txt", "0 1:4\n");
    let of = |paths: &[&PathBuf]| LetorOptions {
        query_sizes: paths.iter().map(|path| path.to_path_buf()).collect(),
        ..options()
    };
    let (good, one) = (folder.file("good.query", "2\r\n1\n"), folder.file("one.query", "1"));
    let read_one = |options: &LetorOptions| letor::read(std::slice::from_ref(&data), options);
    let read = read_one(&of(&[&good])).unwrap();
    assert_eq!((ids(&read), sizes(&read)), (vec!["1", "2"], vec![2, 1]));

    let both = [data.clone(), more];
    let read = letor::read(&both, &of(&[&good, &one])).unwrap();
    assert_eq!(sizes(&read), [2, 1, 1]);
    let together = folder.file("together.query", "2 2\n");
    assert_eq!(sizes(&letor::read(&both, &of(&[&together])).unwrap()), [2, 2]);
    assert!(matches!(letor::read(&both, &of(&[&one, &one, &one])), Err(Error::Config(_))));

    let long = folder.file("long.query", "7\n9\n");
    let message = read_one(&of(&[&long])).unwrap_err().to_string();
    for part in ["long.query", "data.txt", "16", "3 documents"] {
        assert!(message.contains(part), "{message}");
    }
    let message = letor::read(&both, &of(&[&good, &long])).unwrap_err().to_string();
    assert!(message.contains("more.txt") && message.contains("long.query"), "{message}");
    for wrong in ["0\n3\n", "x", "3.0", "-3"] {
        let path = folder.file("wrong.query", wrong);
        assert!(matches!(read_one(&of(&[&path])), Err(Error::Parse { line: 1, .. })), "{wrong}");
    }
    assert!(matches!(read_one(&of(&[&folder.path("none.query")])), Err(Error::Io { .. })));

    let named = folder.file("named.txt", "1 qid:1 1:1\n");
    let Err(Error::Parse { token, reason, .. }) = letor::read(&[named], &of(&[&one])) else { panic!() };
    assert_eq!(token, "qid:1");
    assert!(reason.contains("--query-sizes"), "{reason}");

    let bare = folder.file("bare.txt", "1:1\n1:2\n");
    let optional = LetorOptions { labels: Labels::Optional, ..of(&[&folder.file("two.query", "2")]) };
    assert!(!letor::read(&[bare], &optional).unwrap().has_labels());
}

#[test]
fn comments_are_ignored() {
    let data = read(
        "# head 1:2 qid:9\n3 qid:1 1:9.5 2:10 # 7 title: part 2:1 qid:3\n\n0 qid:1 1:0 2:0 #1\n1 qid:1 1:0.5 2:0.75# x\n#\n",
    );
    assert_eq!((data.num_queries(), data.num_documents(), data.num_features()), (1, 3, 2));
    assert_eq!(rows(&data)[2], [Some(0.5), Some(0.75)]);
    assert_eq!(read(b"1 qid:1 1:1 # \xFF\xFE\n").num_documents(), 1);
}

#[test]
fn ids_are_texts() {
    let data = read(
        "1 qid:18446744073709551617 1:1\n1 qid:18446744073709551616 1:1\n0 qid:007 1:1\n0 qid:7 1:1\n1 qid:é:x 1:1",
    );
    assert_eq!(ids(&data), ["18446744073709551617", "18446744073709551616", "007", "7", "é:x"]);
    assert_eq!(error("1 qid:\t1:1\n").2, "the query id is empty");
    assert!(error(b"1 qid:\xFF 1:1\n").2.contains("UTF-8"));
    assert!(error(b"1 qid:1 1:1\n1 qid:1 1:1 #docid = \xFF\n").2.contains("UTF-8"));
    assert_eq!(error("1 qid:1 qid:2 1:1\n").1, "qid:2");
    let (_, token, reason) = error("1 1:1\n");
    assert_eq!(token, "1:1");
    assert!(reason.contains("--query-sizes"), "{reason}");
}

#[test]
fn order_of_queries_is_that_of_the_file() {
    let data = read("1 qid:30 1:1\n0 qid:30 1:2\n2 qid:20 1:3\n0 qid:20 1:4\n");
    assert_eq!(ids(&data), ["30", "20"]);
    assert_eq!(data.positions(), [0, 1, 2, 3]);
}

#[test]
fn scattered_queries_are_regrouped() {
    let text = "0 qid:a 1:1 #docid = d0\n1 qid:b 1:2 #docid = d1\n2 qid:a 2:3 #docid = d2\n3 qid:c 1:4\n4 qid:b 1:5\n";
    for chunk_size in [1, 1000] {
        let data = read_with(text, &LetorOptions { chunk_size, ..options() }).unwrap();
        assert_eq!((ids(&data), sizes(&data)), (vec!["a", "b", "c"], vec![2, 2, 1]));
        assert_eq!(data.positions(), [0, 2, 1, 4, 3]);
        assert_eq!(data.labels().unwrap(), [0.0, 2.0, 1.0, 4.0, 3.0]);
        assert_eq!(data.in_original_order(data.labels().unwrap()), [0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(rows(&data)[1], [None, Some(3.0)]);
        assert_eq!([data.query(0).document_id(1), data.query(1).document_id(1)], ["d2", ""]);
    }
}

#[test]
fn what_is_no_pair_is_an_error() {
    for (text, line, token) in [
        ("0 qid:1 2:1 6: .5", 1, "6:"),
        ("1 qid:1 1:6.5e-0114:8.75e-01 15:1", 1, "1:6.5e-0114:8.75e-01"),
        ("1 qid:1 1:1\n1 qid:1 3\n", 2, "3"),
        ("1 qid:1 1:1\n\n# c\n0 qid:1 4:\n", 4, "4:"),
        ("1 qid:1 :1\n", 1, ":1"),
        ("1 qid:1 1023:5 :7 1030:12345678 1031:12345678\n", 1, ":7"),
        ("1 qid:1 1023:5 1024:1 :7 1030:12345678 1031:12345678\n", 1, ":7"),
        ("1 qid:1 a:1\n", 1, "a:1"),
        ("1 qid:1 -1:1\n", 1, "-1:1"),
        ("1 qid:1 1.5:1\n", 1, "1.5:1"),
        ("1 qid:1 1:0x10\n", 1, "1:0x10"),
        ("1 qid:1 1:1_000\n", 1, "1:1_000"),
        ("1 qid:1 1:1e\n", 1, "1:1e"),
        ("1 qid:1 1:1,5\n", 1, "1:1,5"),
        ("1 qid:1 1:one\n", 1, "1:one"),
        ("1\n", 1, "end of line"),
    ] {
        let found = error(text);
        assert_eq!((found.0, &*found.1), (line, token), "{text}: {}", found.2);
    }
}

#[test]
fn indices_may_come_in_any_order_and_the_last_of_two_counts() {
    let data = read("1 qid:1 3:3 1:1 2:2\n0 qid:1 3:-1 2:5 3:7 2:6 3:9\n");
    assert_eq!(rows(&data), [[Some(1.0), Some(2.0), Some(3.0)], [None, Some(6.0), Some(9.0)]]);
    assert_eq!(data.columns().absent_cells, 1);
}

#[test]
fn layout_of_lines_does_not_matter() {
    let plain = read("4 qid:1 1:12.5 2:10.25\n3 qid:1 1:0.5 2:10\n0 qid:2 1:-0 2:0.5\n1 qid:2 1:1 2:5\n");
    let odd = "\u{FEFF}4\tqid:1\t1:12.5\t 2:10.25 # t\r\n+3   qid:1  1:+0.5 2:1e+1\t \r\n\r\n   \t\r\n  0 qid:2 1:-0 2:00.5\n1.0 qid:2 1:1. 2:5";
    assert_same(&read(odd), &plain);
}

#[test]
fn nothing_to_read_is_an_error() {
    for text in ["", "\n\n", "# only a comment\n", "\u{FEFF}"] {
        let message = read_with(text, &options()).unwrap_err().to_string();
        assert!(message.contains("data.txt: no documents"), "{message}");
    }
    let message = read_with("1\0 \0q\0i\0d\0", &options()).unwrap_err().to_string();
    assert!(message.contains("binary"), "{message}");
    assert!(matches!(letor::read(&[], &options()), Err(Error::Config(_))));
}

#[test]
fn several_and_compressed_files_are_read_as_one() {
    let folder = Folder::new();
    let (first, second) = ("1 qid:1 1:1\n0 qid:1 2:2\n", "2 qid:1 4:1\n1 qid:2 1:x\n");
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(first.as_bytes()).unwrap();
    let gz = folder.file("a.txt.gz", gz.finish().unwrap());
    let zst = folder.file("b.txt.zst", zstd::encode_all(second.replace('x', "3").as_bytes(), 1).unwrap());
    let data = letor::read(&[gz.clone(), zst], &options()).unwrap();
    assert_same(&data, &read("1 qid:1 1:1\n0 qid:1 2:2\n2 qid:1 4:1\n1 qid:2 1:3\n"));

    let wrong = folder.file("b.txt", second);
    let Err(Error::Parse { file, line, .. }) = letor::read(&[gz.clone(), wrong], &options()) else {
        panic!()
    };
    assert!(file.ends_with("b.txt") && line == 2);
    let cut = std::fs::read(&gz).unwrap();
    let cut = folder.file("cut.gz", &cut[..cut.len() - 6]);
    assert!(matches!(letor::read(&[cut], &options()), Err(Error::Io { .. })));
}

#[test]
fn the_first_error_is_told_however_the_text_is_cut() {
    let text = "1 qid:1 1:1\nqid:1 1:1\n1 qid:1 0:1\n1 qid:1 2:1\n1 qid:1 1:x\n1 qid 1:1\n";
    for (options, line) in [
        (LetorOptions { labels: Labels::Optional, ..options() }, 2),
        (LetorOptions { index_base: IndexBase::One, ..options() }, 2),
    ] {
        for chunk_size in [1, 13, 30, 1000] {
            assert_eq!(error_with(text, &LetorOptions { chunk_size, ..options.clone() }).0, line);
        }
    }
    let auto = LetorOptions { features: Some(2), ..options() };
    for chunk_size in [1, 13, 30, 1000] {
        let options = LetorOptions { chunk_size, ..auto.clone() };
        assert_eq!(error_with(&text[22..], &options).0, 2);
    }
}

/// A document and an odd way to write it.
#[derive(Clone, Debug)]
struct Line {
    query: u8,
    label: i8,
    features: Vec<(u32, f32)>,
    id: Option<u16>,
    style: u64,
}

fn value() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => (-1000i32..1000).prop_map(|v| v as f32 / 8.0),
        2 => any::<f32>().prop_filter("finite", |v| v.is_finite()),
        1 => Just(f32::NAN),
    ]
}

fn lines() -> impl Strategy<Value = Vec<Line>> {
    let features = prop::collection::vec((0u32..12, value()), 0..8);
    let line = (0u8..6, -1i8..5, features, prop::option::of(any::<u16>()), any::<u64>());
    prop::collection::vec(line, 1..40).prop_map(|lines| {
        let line = |(query, label, features, id, style)| Line { query, label, features, id, style };
        lines.into_iter().map(line).collect()
    })
}

/// Writes the lines, each in its style: blanks, comments, signs, exponents, line ends.
fn render(lines: &[Line]) -> String {
    let mut text = String::new();
    for line in lines {
        let mut style = line.style;
        let mut pick = |count: u64| {
            let choice = style % count;
            style = (style / count) ^ (style << 60);
            choice as usize
        };
        let blank = |choice: usize| [" ", "\t", "  ", " \t "][choice];
        text += ["", "\n", "# x 1:2\n", " \t\r\n"][pick(4)];
        text += &["", " "][pick(2)].repeat(2);
        text += ["", if line.label >= 0 { "+" } else { "" }][pick(2)];
        text += &format!("{}{}qid:q{}", line.label, blank(pick(4)), line.query);
        for &(index, value) in &line.features {
            let number = match pick(4) {
                _ if value.is_nan() => ["NULL", "nan", "-inf", "1.797e308"][pick(4)].to_owned(),
                0 => format!("{value:e}"),
                1 if value.is_sign_positive() => format!("+{value}"),
                2 => format!("{value:E}"),
                _ => value.to_string(),
            };
            text += &format!("{}{index}:{number}", blank(pick(4)));
        }
        if let Some(id) = line.id {
            text += &format!(
                "{}docid{}{id}{}",
                ["#", " # "][pick(2)],
                [" = ", "="][pick(2)],
                ["", " inc = 1"][pick(2)]
            );
        } else {
            text += ["", " ", "#", "# 3:4"][pick(4)];
        }
        text += ["\n", "\r\n"][pick(2)];
    }
    if lines[0].style & 1 == 1 { text.trim_end().to_owned() } else { text }
}

/// What reading has to give, computed line by line.
fn check(data: &Dataset, lines: &[Line], absent: Absent) -> Result<(), TestCaseError> {
    let mut queries: Vec<u8> = Vec::new();
    for line in lines {
        if !queries.contains(&line.query) {
            queries.push(line.query);
        }
    }
    let indices = || lines.iter().flat_map(|line| &line.features).map(|&(index, _)| index);
    let first = if indices().any(|index| index == 0) { 0 } else { 1 };
    let width = indices().max().map_or(0, |largest| largest + 1 - first);
    prop_assert_eq!((data.columns().first_index, data.columns().count), (first, width));
    prop_assert_eq!((data.columns().least, data.columns().largest), (indices().min(), indices().max()));
    prop_assert_eq!(data.num_queries(), queries.len());
    let mut row = 0;
    for (number, query) in queries.into_iter().enumerate() {
        let of_query = lines.iter().enumerate().filter(|(_, line)| line.query == query);
        prop_assert_eq!(data.query(number).id(), format!("q{query}"));
        for (document, (position, line)) in of_query.enumerate() {
            prop_assert_eq!(data.positions()[row], position as u64);
            prop_assert_eq!(data.labels().unwrap()[row], f32::from(line.label));
            let id = line.id.map_or(String::new(), |id| id.to_string());
            prop_assert_eq!(data.query(number).document_id(document), id);
            for column in 0..width {
                let last = line.features.iter().rev().find(|&&(index, _)| index == first + column);
                let fill = if absent == Absent::Zero { 0.0 } else { f32::NAN };
                let expected = last.map_or(fill, |&(_, value)| value);
                let found = data.query(number).document(document)[column as usize];
                prop_assert!(found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan()));
            }
            row += 1;
        }
    }
    prop_assert_eq!(row, data.num_documents());
    Ok(())
}

proptest! {
    #[test]
    fn any_way_to_write_it_reads_the_same(lines in lines(), zero: bool, chunk_size in 1usize..200) {
        let absent = if zero { Absent::Zero } else { Absent::Missing };
        let folder = Folder::new();
        let path = folder.file("data.txt", render(&lines));
        let inputs = [path];
        let options = LetorOptions { absent, ..options() };
        let data = letor::read(&inputs, &options).unwrap();
        check(&data, &lines, absent)?;
        let counts = letor::check(&inputs, &options, &|_| Ok(())).unwrap();
        prop_assert_eq!(counts.queries, data.num_queries());
        prop_assert_eq!(counts.documents, data.num_documents() as u64);
        prop_assert_eq!(counts.features, data.columns().count);

        // Neither pieces, threads, compression nor the way through a store make a difference.
        let small = LetorOptions { chunk_size, ..options };
        assert_same(&letor::read(&inputs, &small).unwrap(), &data);
        let zst = folder.file("data.zst", zstd::encode_all(render(&lines).as_bytes(), 1).unwrap());
        assert_same(&letor::read(&[zst], &small).unwrap(), &data);
        let one_thread = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        assert_same(&one_thread.install(|| letor::read(&inputs, &small)).unwrap(), &data);
        let sets = folder.path("data.sets");
        letor::import(&inputs, &small, &sets, &[], &|_| Ok(())).unwrap();
        assert_same(&store::open(&sets).unwrap(), &data);

        // Text written from it reads the same again.
        let mut text = Vec::new();
        letor::write(&data, &mut text).unwrap();
        let columns = data.columns();
        if columns.count > 0 {
            let again = LetorOptions {
                absent,
                features: Some(columns.count),
                index_base: if columns.first_index == 0 { IndexBase::Zero } else { IndexBase::One },
                ..LetorOptions::default()
            };
            let again = letor::read(&[folder.file("again.txt", text)], &again).unwrap();
            prop_assert_eq!(ids(&again), ids(&data));
            prop_assert_eq!(again.labels(), data.labels());
            let bits = |data: &Dataset| data.features().iter().map(|v| if v.is_nan() { 1 } else { v.to_bits() }).collect::<Vec<_>>();
            prop_assert_eq!(bits(&again), bits(&data));
        }
    }

    #[test]
    fn any_bytes_give_data_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..80), chunk_size in 1usize..50) {
        let _ = read_with(&bytes, &LetorOptions { labels: Labels::Optional, chunk_size, ..options() });
    }

    #[test]
    fn any_nearly_right_text_gives_data_or_the_same_error(
        text in "(([-+]?[0-9.]{1,3}|qid:[0-9]?|[0-9]{1,2}:[-+0-9.e]{0,4}|#|docid|=|NULL|nan)[ \t\r\n]{0,2}){0,20}",
        chunk_size in 1usize..50,
    ) {
        let whole = read_with(&text, &options());
        let cut = read_with(&text, &LetorOptions { chunk_size, ..options() });
        match (whole, cut) {
            (Ok(whole), Ok(cut)) => assert_same(&whole, &cut),
            (Err(Error::Parse { line, token, reason, .. }), Err(Error::Parse { line: l, token: t, reason: r, .. })) => {
                prop_assert_eq!((line, token, reason), (l, t, r));
            }
            (Err(whole), Err(cut)) => prop_assert_eq!(std::mem::discriminant(&whole), std::mem::discriminant(&cut)),
            _ => prop_assert!(false, "one reads, the other does not: {text:?}"),
        }
    }
}

/// A folder beside the project, or `None`, said on stderr, where it is absent.
fn shared(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared").join(name);
    if !path.is_dir() {
        eprintln!("skipped: no folder {}", path.display());
        return None;
    }
    Some(path)
}

#[test]
fn odd_files_of_others() {
    let Some(folder) = shared("odd") else { return };
    let counts = |name: &str| {
        let data = letor::read(&[folder.join(name)], &options()).unwrap_or_else(|e| panic!("{e}"));
        (data.num_queries(), data.num_documents(), data.num_features())
    };
    assert_eq!(counts("01_huge_double_sentinel.letor"), (1, 3, 4));
    assert_eq!(counts("02_qid_zero_based_and_docid_comment.letor"), (2, 3, 4));
    assert_eq!(counts("03_sparse_wide_exponents_first_index_10.letor"), (2, 3, 700));
    assert_eq!(counts("06_fractional_labels.letor"), (2, 5, 1));
    assert_eq!(counts("08_single_doc_and_all_zero_queries.letor"), (4, 6, 1));
    assert_eq!(counts("09_comment_with_pairs.letor"), (1, 3, 2));
    assert_eq!(counts("11_qid_decreasing_but_grouped.letor"), (2, 4, 1));
    assert_eq!(counts("14_nan_inf_null_tokens.letor"), (1, 4, 2));
    assert_eq!(counts("15_space_after_colon_and_leading_dot.ok.letor"), (1, 1, 63));
    assert_eq!(counts("18_unsorted_and_duplicate_indices.dup.letor"), (1, 1, 17));
    assert_eq!(counts("18_unsorted_and_duplicate_indices.letor"), (1, 1, 3));
    assert_eq!(counts("21_crlf_trailing_space_blank_lines_no_final_newline.letor"), (2, 4, 2));
    assert_eq!(counts("25_tabs_double_spaces_plus_sign.letor"), (1, 4, 2));
    for (name, wrong) in [
        ("15_space_after_colon_and_leading_dot.letor", 1),
        ("16_missing_space_between_pairs.letor", 1),
        ("20_token_without_value.letor", 2),
    ] {
        let Err(Error::Parse { line, .. }) = letor::read(&[folder.join(name)], &options()) else {
            panic!("{name}")
        };
        assert_eq!(line, wrong, "{name}");
    }
    let with_sizes = |name: &str| {
        let options = LetorOptions { query_sizes: vec![folder.join(name)], ..options() };
        letor::read(&[folder.join("05_query_file_counts.train")], &options)
    };
    assert_eq!(sizes(&with_sizes("05_query_file_counts.train.query").unwrap()), [1, 3]);
    let message = with_sizes("05_query_file_counts.bad.query").unwrap_err().to_string();
    assert!(message.contains("30") && message.contains("4 documents"), "{message}");
}

#[test]
fn real_sets_of_others() {
    let Some(folder) = shared("data") else { return };
    let read = |names: &[&str], options: &LetorOptions| {
        let paths: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
        let data = letor::read(&paths, options).unwrap_or_else(|e| panic!("{e}"));
        (data.num_queries(), data.num_documents(), data.num_features())
    };
    let parts = |stem: &str| (1..=5).map(|part| format!("{stem}{part}.txt")).collect::<Vec<_>>();
    for (stem, expected) in [
        ("mq2007agg/A", (1692, 69_623, 21)),
        ("mslr_union/S", (228, 24_738, 136)),
        ("mq2008/S", (784, 15_211, 46)),
    ] {
        let names = parts(stem);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(read(&names, &options()), expected);
    }
    assert_eq!(read(&["usptact/train.sorted.ltr"], &options()).0, 3139);
    assert_eq!(read(&["usptact/test.sorted.ltr"], &options()).2, 43);
    let sized = |name: &str| LetorOptions {
        query_sizes: vec![folder.join(format!("lightgbm_lambdarank/{name}.query"))],
        ..options()
    };
    let train = read(&["lightgbm_lambdarank/rank.train"], &sized("rank.train"));
    let test = read(&["lightgbm_lambdarank/rank.test"], &sized("rank.test"));
    assert_eq!((train.0 + test.0, train.1 + test.1, train.2), (251, 3773, 300));
    for name in [
        "tfr_testdata/train.txt",
        "es_ltr_demo/rocky_wfeatures.txt",
        "fastrank_trecnews/trec_news_2018.train",
    ] {
        assert!(read(&[name], &options()).1 > 0);
    }
}
