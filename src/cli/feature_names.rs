//! Files with names of features.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::bail;
use setrank::data::Columns;

/// Names of features, by raw index.
pub struct FeatureNames(BTreeMap<u32, String>);

impl FeatureNames {
    /// Reads names of the features `columns`: with tabs as lines of index and name, of which further columns and a
    /// heading are passed over, else one a line, in the order of the features. Warns where the features are not as many.
    pub fn read(path: &Path, columns: Columns) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|e| setrank::Error::io("read", path, e))?;
        let text = text.trim_end();
        let names = if text.contains('\t') {
            by_index(path, text)?
        } else {
            (columns.first_index..).zip(text.lines().map(|line| line.trim().to_owned())).collect()
        };
        let shown = path.display();
        if names.values().all(String::is_empty) {
            bail!("{shown}: no name of a feature: expected one a line, or lines of index, tab and name");
        }
        if names.len() != columns.count as usize {
            log::warn!("{shown}: {} names for {} features", names.len(), columns.count);
        }
        Ok(FeatureNames(names))
    }

    /// The name of a feature, where it has one.
    pub fn of(&self, feature: u32) -> Option<&str> {
        self.0.get(&feature).map(String::as_str).filter(|name| !name.is_empty())
    }
}

/// The names in a table of index and name.
fn by_index(path: &Path, text: &str) -> anyhow::Result<BTreeMap<u32, String>> {
    let shown = path.display();
    let mut names = BTreeMap::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let mut fields = line.split('\t').map(str::trim);
        let (index, name) = (fields.next().unwrap_or_default(), fields.next());
        let is_heading = ["index", "feature"].iter().any(|word| index.eq_ignore_ascii_case(word))
            && name.is_some_and(|name| name.eq_ignore_ascii_case("name"));
        if number == 0 && is_heading {
            continue;
        }
        let (Ok(index), Some(name)) = (index.parse(), name) else {
            bail!("{shown}:{}: expected a feature index, a tab and a name", number + 1);
        };
        if names.insert(index, name.to_owned()).is_some() {
            bail!("{shown}:{}: feature {index} has a name already", number + 1);
        }
    }
    if !names.is_empty() && names.values().all(|name| name.parse::<f64>().is_ok()) {
        bail!(
            "{shown}: the second column holds numbers: expected lines of a feature's index, a tab and its name"
        );
    }
    Ok(names)
}
