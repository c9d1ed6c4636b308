//! The identifiers that a file gives to things: types, functions, fields, variants, modules, the file.
//! What it calls its local variables is not read.

use std::collections::BTreeSet;

use syn::visit::{self, Visit};
use syn::{Ident, Visibility};

use crate::sources::SourceFile;

/// The names of a file.
#[derive(Default)]
pub(super) struct Identifiers {
    /// All of them.
    pub(super) all: BTreeSet<String>,
    pub(super) types: BTreeSet<String>,
    /// Types that other crates can see.
    pub(super) public_types: BTreeSet<String>,
}

impl Identifiers {
    pub(super) fn of(file: &SourceFile) -> Result<Self, String> {
        let mut found = Self::default();
        let stem = file.path.file_stem().unwrap_or_default().to_string_lossy();
        found.all.insert(stem.into_owned());
        if file.path.extension().is_some_and(|end| end == "rs") {
            let tree = syn::parse2(file.tokens())
                .map_err(|error| format!("{}: {error}", file.path.display()))?;
            found.visit_file(&tree);
        } else {
            let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
            let statements = file.statements();
            let words = statements.split(|letter| !is_part(letter));
            found.all.extend(words.filter(|word| !word.is_empty()).map(str::to_owned));
        }
        Ok(found)
    }

    fn add(&mut self, name: &Ident) {
        self.all.insert(name.to_string());
    }

    fn add_type(&mut self, name: &Ident, visibility: &Visibility) {
        self.add(name);
        self.types.insert(name.to_string());
        if matches!(visibility, Visibility::Public(_)) {
            self.public_types.insert(name.to_string());
        }
    }
}

impl<'ast> Visit<'ast> for Identifiers {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.add_type(&item.ident, &item.vis);
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.add_type(&item.ident, &item.vis);
        visit::visit_item_enum(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.add_type(&item.ident, &item.vis);
        visit::visit_item_trait(self, item);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.add_type(&item.ident, &item.vis);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.add(&item.ident);
        visit::visit_item_mod(self, item);
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.add(&item.ident);
        visit::visit_item_const(self, item);
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.add(&item.ident);
        visit::visit_item_static(self, item);
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        self.add(&signature.ident);
        visit::visit_signature(self, signature);
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.add(&variant.ident);
        visit::visit_variant(self, variant);
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        field.ident.iter().for_each(|name| self.add(name));
        visit::visit_field(self, field);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn what_is_declared_is_found_and_what_is_used_is_not() {
        let text = "pub struct Queue { claims: Vec<Claim> }\npub(crate) enum Mode { Shared }\n\
                    impl Queue { fn first(&self, at: Place) -> Option<Claim> { let local = at; None } }";
        let file = SourceFile::new(Path::new("a/src/order.rs"), text.to_owned()).expect("Rust");
        let found = Identifiers::of(&file).expect("it is parsed");
        let expected = ["Mode", "Queue", "Shared", "claims", "first", "order"];
        assert_eq!(found.all.iter().collect::<Vec<_>>(), expected);
        assert_eq!(found.public_types.iter().collect::<Vec<_>>(), ["Queue"]);
        let text = "-- no comment\nlocal function promote(key) end".to_owned();
        let lua = SourceFile::new(Path::new("a/src/a.lua"), text).expect("Lua");
        let found = Identifiers::of(&lua).expect("it is read");
        assert_eq!(found.all.len(), 6, "{:?}", found.all);
    }
}
