import eslint from '@eslint/js';
import { defineConfig } from 'eslint/config';
import tseslint from 'typescript-eslint';

export default defineConfig(
  {
    ignores: [
      '**/node_modules/',
      '**/lib/',
      '.venv/',
      'kernel_monitor/',
      'dist/',
      'build/',
      'docs/',
      'tests/'
    ]
  },
  eslint.configs.recommended,
  {
    files: ['**/*.ts'],
    extends: [tseslint.configs.strictTypeChecked, tseslint.configs.stylisticTypeChecked],
    languageOptions: { parserOptions: { projectService: true } },
    rules: {
      eqeqeq: 'error',
      'no-console': ['error', { allow: ['warn', 'error', 'debug'] }],
      // A callback that returns what its one expression returns is no accident.
      '@typescript-eslint/no-confusing-void-expression': ['error', { ignoreArrowShorthand: true }],
      // An index that was just checked, or a fixed layout: the type checker cannot see it.
      '@typescript-eslint/no-non-null-assertion': 'off',
      '@typescript-eslint/restrict-template-expressions': ['error', { allowNumber: true }],
      // JupyterLab names a token and its interface alike.
      '@typescript-eslint/no-redeclare': 'off'
    }
  },
  {
    // Lumino's `signal.connect(this.method, this)` binds by its second argument.
    files: ['extension/**/*.ts'],
    rules: { '@typescript-eslint/unbound-method': 'off' }
  }
);
