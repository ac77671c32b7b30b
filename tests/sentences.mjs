// String literals of TypeScript files with a space in them, as JSON: `[[path, text], …]`; a template's `${rate}` is `{rate}`.
// usage: node tests/sentences.mjs FILE…
import { readFileSync } from 'node:fs';
import ts from 'typescript';

/** The last name in an expression that says what stands in its place. */
function named(node) {
  if (ts.isIdentifier(node)) {
    return node.text;
  }
  if (ts.isPropertyAccessExpression(node)) {
    return node.name.text;
  }
  if (ts.isConditionalExpression(node)) {
    return `${named(node.whenTrue)}|${named(node.whenFalse)}`;
  }
  if (ts.isStringLiteralLike(node)) {
    return node.text;
  }
  if (ts.isTemplateExpression(node)) {
    return words(node);
  }
  if (ts.isCallExpression(node)) {
    return named(node.arguments[0] ?? node.expression);
  }
  const names = [];
  node.forEachChild(child => void names.push(named(child)));
  return names.find(name => /[a-z]/i.test(name)) ?? '';
}

function words(node) {
  return (
    node.head.text +
    node.templateSpans.map(span => `{${named(span.expression)}}${span.literal.text}`).join('')
  );
}

const found = [];
for (const path of process.argv.slice(2)) {
  const visit = node => {
    if (ts.isImportDeclaration(node) || ts.isTypeNode(node)) {
      return;
    }
    const text = ts.isTemplateExpression(node)
      ? words(node)
      : ts.isStringLiteralLike(node)
        ? node.text
        : '';
    if (text.includes(' ')) {
      found.push([path, text]);
    }
    node.forEachChild(visit);
  };
  visit(ts.createSourceFile(path, readFileSync(path, 'utf8'), ts.ScriptTarget.Latest, true));
}
process.stdout.write(JSON.stringify(found));
