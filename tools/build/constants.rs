//! Constants of anonymous enums as plain integers.

/// bindgen gives each anonymous enum an alias, `pub type _bindgen_ty_1 = u32;`, and its constants that type. This puts
/// the integer in the alias's place.
pub fn plain(bindings: &str) -> String {
    let alias = |line: &str| -> Option<(String, String)> {
        let (name, integer) = line.trim().strip_prefix("pub type ")?.strip_suffix(';')?.split_once(" = ")?;
        let number = name.strip_prefix("_bindgen_ty_")?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| (name.to_owned(), integer.to_owned()))
    };
    let aliases: Vec<(String, String)> = bindings.lines().filter_map(alias).collect();
    let mut text = String::new();
    for line in bindings.lines().filter(|line| alias(line).is_none()) {
        let integer = aliases.iter().find_map(|(name, integer)| {
            let (before, after) = line.split_once(&format!(": {name} = "))?;
            Some(format!("{before}: {integer} = {after}"))
        });
        text.push_str(integer.as_deref().unwrap_or(line));
        text.push('\n');
    }
    text
}
